"""FedFA: feature statistics redrawn with client-aware variance (Zhou and Konukoglu, ICLR 2023)."""
