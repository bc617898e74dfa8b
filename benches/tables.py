"""Asks the statements of docs/reference.md of tables of `export --tables`, in DuckDB and in Spark.

    python3 benches/tables.py docs/reference.md DIR PROGRAM WRITERS READERS

Both engines must give the same answers, of so many rows as are given, before and after PROGRAM has joined many small files,
and must open files of the seven days that a statement asks for and no others: their own plans say so. Prints how long each takes. Needs duckdb,
pandas and pyspark, and Java 17 or newer; `cargo bench --bench tables` makes the tables.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import time

import duckdb
import pyspark
from pyspark.sql import SparkSession

document, directory, program, *expected = sys.argv[1:]
blocks = re.findall(r"<!-- statement: ([^\n]*) -->\n```\w+\n(.*?)```", open(document).read(), re.S)
statement = dict(blocks)
os.chdir(os.path.dirname(os.path.abspath(directory)))
assert os.path.basename(directory) == "tables", "the statements name the directory so"
asked = ["writers", "readers", "hosts"]
# How many files the statements may open of each table.
dates = sorted(glob.glob("tables/table=files/date=*"))
rounds = 3


def in_week(table):
    days = [os.path.basename(date) for date in dates[-7:]]
    return sum(len(glob.glob(f"tables/table={table}/{day}/*.parquet")) for day in days)


def timed(what):
    begun = time.monotonic()
    result = what()
    return time.monotonic() - begun, result


def report(engine, name, seconds, rows, opened, there):
    files = f"{opened} of {there} files opened" if opened is not None else ""
    print(f"{engine:8} {name:12} {seconds:8.2f} s  {rows:6} rows  {files}", flush=True)


def number_of_files(name):
    tables = ["network"] if name == "hosts" else ["files", "recordings"]
    count = lambda table: len(glob.glob(f"tables/table={table}/*/*.parquet"))
    return sum(map(count, tables)), sum(in_week(table) for table in tables)


def answers(rows):
    """The rows without their times, and with the types of Python."""

    def plain(value):
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, float):
            return None if value != value else int(value)
        return value

    return [[plain(value) for value in row if not hasattr(value, "year")] for row in rows]


def in_duckdb():
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    seconds, _ = timed(lambda: connection.execute(statement["duckdb"]))
    report("DuckDB", "views", seconds, 0, None, None)
    told = {}
    for name in asked:
        there, allowed = number_of_files(name)
        times = [timed(lambda: connection.sql(statement[name]).df()) for _ in range(rounds)]
        frame = times[0][1]
        plan = connection.execute(f"EXPLAIN (ANALYZE, FORMAT json) {statement[name]}").fetchall()[0][1]
        opened = sum(int(files) for files in re.findall(r'"Total Files Read": "(\d+)"', plan))
        report("DuckDB", name, statistics.median(one for one, _ in times), len(frame), opened, there)
        assert 0 < opened <= allowed < there, (opened, allowed, there, plan)
        told[name] = answers(frame.itertuples(index=False))
    return connection, told


def in_spark(spark):
    seconds, _ = timed(lambda: exec(statement["spark"], {"spark": spark}))
    report("Spark", "views", seconds, 0, None, None)
    told = {}
    for name in asked:
        there, allowed = number_of_files(name)
        times = []
        for _ in range(rounds):
            frame = spark.sql(statement[name])
            times.append(timed(frame.collect))
        plan = frame._jdf.queryExecution().executedPlan()
        leaves = plan.collectLeaves()
        scans = [leaves.apply(index) for index in range(leaves.size())]
        assert len(scans) == (1 if name == "hosts" else 2), plan.toString()
        for scan in scans:
            assert re.search(r"PartitionFilters: \[[^\]]*\(date#\d+ > ", scan.toString()), scan.toString()
        opened = sum(scan.metrics().apply("numFiles").value() for scan in scans)
        rows = times[0][1]
        report("Spark", name, statistics.median(one for one, _ in times), len(rows), opened, there)
        assert 0 < opened <= allowed < there, (opened, allowed, there, plan.toString())
        told[name] = answers(rows)
    return told


def size():
    files = glob.glob("tables/table=*/*/*.parquet")
    return f"{len(files)} files, {sum(map(os.path.getsize, files)) >> 20} MiB"


spark = SparkSession.builder.master("local[*]").appName("tables").config("spark.ui.enabled", False)
# Otherwise scans, whose metrics have the files, are in stages or subqueries of their own, out of reach from Python.
spark = spark.config("spark.sql.adaptive.enabled", False)
spark = spark.config("spark.sql.optimizer.dynamicPartitionPruning.enabled", False)
spark = spark.config("spark.driver.memory", "4g").config("spark.sql.shuffle.partitions", 8)
spark = spark.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", False).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
print(f"DuckDB {duckdb.__version__}, Spark {pyspark.__version__}; {size()}")
connection, told = in_duckdb()
assert [len(told["writers"]), len(told["readers"])] == list(map(int, expected)), told
assert told["hosts"], told
counts = "SELECT (SELECT count(*) FROM files) + (SELECT count(*) FROM recordings)"
rows = connection.sql(counts).fetchall()
print(f"{rows[0][0]} rows of files and recordings")
of_spark = in_spark(spark)
assert of_spark == told, (of_spark, told)

seconds, _ = timed(lambda: subprocess.run([program, "export", "--tables", "tables", "--compact"], check=True))
print(f"compaction: {seconds:.1f} s; {size()}", flush=True)
for day in glob.glob("tables/table=files/*/*.parquet"):
    paths = [path.encode() for (path,) in connection.execute("SELECT path FROM read_parquet(?)", [day]).fetchall()]
    assert paths == sorted(paths), day
compacted, of_duckdb = in_duckdb()
assert of_duckdb == told, (of_duckdb, told)
assert in_spark(spark) == told
assert rows == compacted.sql(counts).fetchall()
