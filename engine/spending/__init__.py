"""What models cost a tenant: admitted and reserved before a call, settled and booked after it."""
