"""Programs that come with Tidemill: ``tidemill kmeans`` is ``tidemill run -m tidemill.apps.kmeans``."""
