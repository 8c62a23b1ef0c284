"""Machine learning over the workers of a job: estimators with scikit-learn's conventions, each rank with its own rows.

`KMeans` clusters. `using` chooses the communicator for a block; without it an estimator uses that of the whole job.
"""

from __future__ import annotations

from tidemill.ml._estimator import ConvergenceWarning, NotFittedError
from tidemill.ml._job import using
from tidemill.ml.kmeans import KMeans

__all__ = ["ConvergenceWarning", "KMeans", "NotFittedError", "using"]
