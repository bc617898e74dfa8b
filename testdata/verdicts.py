"""Runs a module of CPython's own tests, or some of its tests, and writes the verdict of each as JSON.

Usage: verdicts.py OUTPUT MODULE [TEST...]
"""

import json
import sys
import unittest

from test import support

output, module, *tests = sys.argv[1:]
support.use_resources = []  # nothing of the network, no files of gigabytes
support.verbose = 0


class Verdicts(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.verdicts = {}

    def note(self, test, verdict):
        self.verdicts.setdefault(test.id(), set()).add(verdict)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "error")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "fail")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(getattr(test, "test_case", test), "skip")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "unexpected success")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "fail")


suite = unittest.defaultTestLoader.loadTestsFromNames(tests or ["test." + module])
result = unittest.TextTestRunner(verbosity=2, resultclass=Verdicts).run(suite)
with open(output, "w") as file:
    json.dump({test: ", ".join(sorted(verdicts)) for test, verdicts in result.verdicts.items()}, file)
