"""One functional walker per family over Hugging Face parameters; knows no pages."""
