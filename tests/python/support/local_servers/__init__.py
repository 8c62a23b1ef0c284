"""Real servers on loopback for tests of stream connectors; ``make setup-servers`` installs them.

`conftest.py` has a fixture for each. Tests of a server that is not installed are skipped, with a message.
"""

from .kafka import Kafka
from .rabbitmq import RabbitMQ
from .redis import Redis

__all__ = ["Kafka", "RabbitMQ", "Redis"]
