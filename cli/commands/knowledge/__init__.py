"""Commands on sources of documents."""
