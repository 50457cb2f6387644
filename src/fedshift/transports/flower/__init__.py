"""The transport ``flower``. Only this folder and ``deploy.flower`` import the package ``flwr``."""
