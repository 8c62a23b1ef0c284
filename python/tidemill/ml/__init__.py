"""Machine learning over the workers of a job: estimators with scikit-learn's conventions, each rank with its own rows.

`KMeans` clusters, `StandardScaler` brings features to one scale, `MDS` places points by their distances, `procrustes` brings one such picture over another. `using` chooses the communicator for a block;
without it an estimator uses that of the whole job.
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
