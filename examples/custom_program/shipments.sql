CREATE TABLE shipments (id TEXT PRIMARY KEY, lane TEXT, carrier TEXT, status TEXT, kilograms REAL);
INSERT INTO shipments VALUES
    ('FW-1001', 'HAM-OSL', 'Nordkai', 'delivered', 1200),
    ('FW-1002', 'HAM-OSL', 'Nordkai', 'in transit', 840.5),
    ('FW-1003', 'RTM-GDN', 'Baltica', 'in transit', 15300),
    ('FW-1004', 'RTM-GDN', 'Baltica', 'held at customs', 410),
    ('FW-1005', 'ANR-LIS', 'Tejo Lines', 'booked', 2250);
