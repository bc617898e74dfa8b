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
LEAST = 0.01  # of all samples: what has fewer is summed up


def category(stack):
    """What a sample was doing, by its frames: symbol and object, the innermost first."""
    for symbol, _ in stack:
        call = re.match(r"__(?:x64|do)_sys_(\w+)", symbol)
        if call:
            return call[1]
    text = " ".join(symbol for symbol, _ in stack)
    if "page_fault" in text:
        return "page faults"
    if "do_exit" in text or "do_group_exit" in text:
        return "end of the process"
    if "sysvec" in text or "irq" in text:
        return "interrupts"
    place = stack[0][1].rsplit("/")[-1] if stack else "?"
    if place.startswith("[kernel"):
        return "entering and leaving the kernel"
    return f"in {place}"


def run(command, count):
    began = time.perf_counter()
    for _ in range(count):
        subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) / count * 1e3


def samples(data):
    script = ["perf", "script", "-i", data, "-F", "comm,ip,sym,dso", "--no-inline"]
    output = subprocess.run(script, check=True, capture_output=True, text=True, errors="replace").stdout
    for block in output.split("\n\n"):
        name, *lines = block.strip("\n").splitlines() or [""]
        frames = (re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line) for line in lines)
        if name:
            yield name.strip(), [(frame[1], frame[2]) for frame in frames if frame]


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    run(command, 1)
    alone = run(command, count)
    with tempfile.TemporaryDirectory() as directory:
        data = f"{directory}/perf.data"
        perf = ["perf", "record", "--quiet", "-F", str(FREQUENCY), "-g", "-o", data, "--"]
        loop = f'for i in $(seq {count}); do "$@" > /dev/null < /dev/null; done; true'
        subprocess.run([*perf, "sh", "-c", loop, "sh", *command], check=True)
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
