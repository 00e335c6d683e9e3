"""Anthropic's Messages API over the chat core: bodies, conversion, events, errors, endpoints."""
