"""What all tests have in common."""

import signal

# Who starts the tests may ignore signals (`nohup`, a job in the background), and the launcher hands that on to its workers, as
# it should: the tests of signals begin with what a terminal gives.
for number, usual in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
