"""What `tidemill[ml,files]` adds: Arrow tables by pyarrow, and the estimators in scikit-learn's pipelines."""

from __future__ import annotations

import numpy as np
import pyarrow
import tidemill as tm
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from tidemill.ml import KMeans, StandardScaler

table = tm.from_dict({"value": [1, 2, 3]}).to_arrow()
assert isinstance(table, pyarrow.Table) and table["value"].to_pylist() == [1, 2, 3]
assert tm.from_arrow(table).group_by().agg(total=tm.col("value").sum()).to_pylist() == [{"total": 6}]

rows = np.array([[0.0, 1.0], [0.1, 1.1], [9.0, 8.0], [9.1, 8.1]])
pipeline = make_pipeline(StandardScaler(), clone(KMeans(n_clusters=2, random_state=0)))
labels = pipeline.fit_predict(rows)
assert labels[0] == labels[1] != labels[2] == labels[3]
print("extras: agree")
