"""Random SQL queries and DataSet chains, checked against DuckDB, Python lists, and against themselves.

| module    | what it does                                                        |
|-----------|---------------------------------------------------------------------|
| `data`    | random schemas and tables, and the sources that they are read from  |
| `tree`    | SQL as a small tree that can be printed and reduced                 |
| `queries` | random queries                                                      |
| `chains`  | random chains of DataSet methods, with the same steps on lists      |
| `oracles` | what a query has to give, and what it gives                         |
| `shrink`  | makes a failing case small                                          |

`python -m sqlfuzz --help` runs them.
"""
