"""Where the program begins, and where it ends: signals and standard streams, before anything else is imported.

Half a second of imports is ahead, and a Ctrl-C may come at any moment of it. This module imports nothing but what the
interpreter has loaded anyway; the rest is imported by `main`, behind its guard.
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
        import atexit
        import signal

        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, and stays so
        if ours:
            # Nothing is begun while modules are imported, so that nothing is lost. A KeyboardInterrupt in there would
            # also come out of whatever import swallows it, or not at all.
            signal.signal(signal.SIGINT, _leave)
            # The interpreter puts the default back while it ends, by which a command that is done would die.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        from cli import streams

        streams.complete()
        sys.unraisablehook = _not_lost
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
    """Raise a KeyboardInterrupt again that came in a callback which cannot raise, such as a weak reference's."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        import _thread

        _thread.start_new_thread(_interrupt_again, ())
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_again() -> None:
    # Later: at once it would be raised in the same callback. In time for a person either way.
    time.sleep(0.01)
    os.kill(os.getpid(), 2)  # SIGINT; `signal` takes 3 ms to import


if __name__ == "__main__":
    main()
