"""Machine learning over the workers of a job: estimators with scikit-learn's conventions, where each rank passes its
own rows.

`KMeans` clusters, `StandardScaler` standardizes features, `MDS` embeds points by their distances, `procrustes` aligns
one set of points with another. `using` sets the communicator for a block; otherwise an estimator uses that of the whole
job.
"""

from __future__ import annotations

from tidemill.ml._estimator import ConvergenceWarning, NotFittedError
from tidemill.ml._job import using
from tidemill.ml._procrustes import Procrustes, procrustes
from tidemill.ml.kmeans import KMeans
from tidemill.ml.mds import MDS
from tidemill.ml.scaler import StandardScaler

__all__ = [
    "MDS",
    "ConvergenceWarning",
    "KMeans",
    "NotFittedError",
    "Procrustes",
    "StandardScaler",
    "procrustes",
    "using",
]
