"""OpenAI's Responses API over the chat core: bodies, conversion, events, the store, endpoints."""
