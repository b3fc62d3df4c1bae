"""The entry point of the program: sets up signals and standard streams before anything else is imported.

The imports take half a second, and a Ctrl-C may arrive at any moment of it. This module imports only modules that the
interpreter has loaded anyway; `main` imports the rest, behind its guard.
"""

import os
import sys
import time

_INTERRUPTED = 130  # as cli.output, which is not imported yet


def run(arguments: "list[str] | tuple[str, ...]") -> int:
    """Run one command line; returns its exit code. Raises nothing, unless ENGINE_DEBUG asks for tracebacks."""
    from cli.application import run

    return run(arguments)


def main() -> None:
    """The console script."""
    try:
        sys.unraisablehook = _not_lost  # first: even the two imports below run callbacks
        import atexit
        import signal

        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # if SIGINT is ignored, it stays ignored
        if ours:
            # Exit directly during the imports: no work has begun that could be lost. A KeyboardInterrupt might be
            # swallowed by the module that is being imported, or turned into another error.
            signal.signal(signal.SIGINT, _leave)
            # The interpreter restores the default handler at exit, and a Ctrl-C would then kill a finished command.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        from cli import streams

        streams.complete()
        from cli.application import run

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(sys.argv[1:])
        if ours:
            signal.signal(signal.SIGINT, _leave)
        code = streams.finish(code)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    sys.exit(code)


def _leave(*_: object) -> None:
    os._exit(_INTERRUPTED)


def _not_lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise a KeyboardInterrupt again if it arrived in a callback that cannot raise, such as a weak reference's."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        import _thread

        _thread.start_new_thread(_interrupt_again, ())
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_again() -> None:
    # Delayed: sent at once, it would be raised in the same callback. The delay is too short to notice.
    time.sleep(0.01)
    os.kill(os.getpid(), 2)  # SIGINT; `signal` takes 3 ms to import


if __name__ == "__main__":
    main()
