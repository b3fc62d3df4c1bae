"""Attacks on the supervisor itself: the worst that a stranger may send, by where it enters, and what each may cost.

`requests`, `uploads`, `declarations`, `answers` and `frames` are tables of attacks; `shapes` makes inputs at random;
`driver` starts a real server (`target`) and holds each attack against the bounds of `engine.work`.
"""
