"""Real servers on loopback for tests of stream connectors; ``make setup-servers`` installs what they run.

`conftest.py` has a fixture for each. One that is not installed skips its tests and says so.
"""

from .kafka import Kafka
from .rabbitmq import RabbitMQ
from .redis import Redis

__all__ = ["Kafka", "RabbitMQ", "Redis"]
