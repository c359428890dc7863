"""The side of the client that speaks to Deephaven servers, and to the same services of ours.

Sessions and their tokens, exports, operations on the server, uploads and input tables. What moves
rows to the client (DoExchange) is not here: it is the same for every server.
"""
