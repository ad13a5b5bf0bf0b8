"""Live events: one reader of the event order, shared batches of encoded events, and fair turns to send them."""
