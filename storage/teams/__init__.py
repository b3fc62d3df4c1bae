"""The files of teams: one for each tenant, of events and the tables that are made from them."""
