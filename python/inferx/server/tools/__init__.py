"""Tool calls: what a request asks for, and finding the calls in what a model writes."""
