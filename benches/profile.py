#!/usr/bin/env python3
"""Where the time of a recording goes: CPU time by thread, and in it by system call, page faults and own code.

    benches/profile.py RUNS COMMAND...      for example 200 target/release/agent-snapshot run --quiet true

Runs COMMAND under perf record (Linux, package linux-perf) and prints milliseconds of CPU time a run, by the names of
threads. Taking the samples is part of it: a few percent.
"""

import collections
import re
import subprocess
import sys
import tempfile
import time

FREQUENCY = 5000
LEAST = 0.02  # of all samples: what has fewer is summed up


def category(stack):
    """What a sample was doing: its innermost frames come first."""
    for frame in stack:
        call = re.match(r"__(?:x64|do)_sys_(\w+)", frame)
        if call:
            return call[1]
    text = " ".join(stack)
    if "page_fault" in text:
        return "page faults"
    if "do_exit" in text or "do_group_exit" in text:
        return "end of the process"
    if "sysvec" in text or "irq" in text:
        return "interrupts"
    return "own code, and entering the kernel"


def run(command, count):
    began = time.perf_counter()
    for _ in range(count):
        subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) / count * 1e3


def samples(data):
    script = ["perf", "script", "-i", data, "-F", "comm,ip,sym", "--no-inline"]
    output = subprocess.run(script, check=True, capture_output=True, text=True, errors="replace").stdout
    for block in output.split("\n\n"):
        lines = block.strip("\n").splitlines()
        if lines:
            yield lines[0].strip(), [line.split(maxsplit=1)[1] for line in lines[1:] if " " in line.strip()]


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    run(command, 1)
    alone = run(command, count)
    with tempfile.TemporaryDirectory() as directory:
        data = f"{directory}/perf.data"
        perf = ["perf", "record", "--quiet", "-F", str(FREQUENCY), "-g", "-o", data, "--"]
        loop = ["sh", "-c", f'for i in $(seq {count}); do "$@" > /dev/null < /dev/null; done', "sh", *command]
        subprocess.run(perf + loop, check=True)
        found = collections.Counter((name, category(stack)) for name, stack in samples(data))
    found = collections.Counter({key: n for key, n in found.items() if key[0] not in ("sh", "seq", "perf", "perf-exec")})
    scale = 1e3 / FREQUENCY / count
    print(f"{count} runs of {alone:.2f} ms, {found.total() * scale:.2f} ms of CPU time\n")
    print("| thread | what | ms |\n|---|---|---|")
    threads = collections.Counter()
    for (name, _), number in found.items():
        threads[name] += number
    for name, number in threads.most_common():
        print(f"| {name} | | {number * scale:.2f} |")
        rest = number
        for (_, what), part in sorted(((k, n) for k, n in found.items() if k[0] == name), key=lambda i: -i[1]):
            if part >= LEAST * found.total():
                print(f"| | {what} | {part * scale:.2f} |")
                rest -= part
        if 0 < rest < number:
            print(f"| | other | {rest * scale:.2f} |")


if __name__ == "__main__":
    main()
