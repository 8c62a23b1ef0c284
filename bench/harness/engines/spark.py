"""Spark in one process, local[2]; tables in memory are cached by it. Started with as much heap as it could want."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from . import SQL, Query, Sorter, Task

HEAP_MIB = 10_240


def session(task: Task) -> SparkSession:
    settings = {
        "spark.driver.memory": f"{task.memory_mib or HEAP_MIB}m",  # local[2] runs in the driver
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.maxResultSize": "0",
        "spark.local.dir": str(task.folder / "spark"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def queries(task: Task) -> Query:
    spark = session(task)
    if task.query == "words":
        return lambda: words(spark, task.text).toArrow()
    for table in task.tables:
        rows = spark.read.parquet(str(task.folder / table))
        if task.in_memory:
            rows = rows.cache()
            rows.count()
        rows.createOrReplaceTempView(table)
    query = SQL[task.query].format(facts="facts", dimension="dimension")
    return lambda: spark.sql(query).toArrow()


def words(spark: SparkSession, text: Path) -> DataFrame:
    lines = spark.read.text(str(text))
    return lines.select(f.explode(f.split("value", " ")).alias("word")).groupBy("word").count()


def sorter(task: Task) -> Sorter:
    spark = session(task)
    # The ranges of a sort: each must fit in a thread's part of the heap, or spill.
    spark.conf.set("spark.sql.shuffle.partitions", "16")

    def run(source: Path, target: Path) -> None:
        records = spark.read.parquet(str(source / "parquet")).sort("key")
        records.write.option("compression", "none").parquet(str(target))

    return run
