"""Bodies of record batches that travel outside their stream: tags, messages, lists, references,
negotiation and reassembly, all as values and bytes.

Sources: Arrow's Dissociated IPC Protocol for tags, untagged messages, address lists and locations;
the rest is between our own server and client and described in docs/transports.md. No IO, no clock:
what comes from a peer raises RemoteProtocolError when it is wrong.
"""
