"""NF4 QLoRA fine-tuning of Qwen2 and Qwen2.5, checked against a NumPy reference while it trains."""

__version__ = "0.1.0"
