"""What the raw server answers: an event stream as an environment sends it, and JSON with an odd head."""

TASK_ID = b"event: task_id\r\ndata: abc\r\n\r\n"
PING = b": ping\r\n\r\n"
CHUNK_1 = b"event: chunk\r\ndata: 0123456789\r\n\r\n"
CHUNK_2 = b"event: chunk\r\ndata: abcdefghij\r\n\r\n"
END = b"event: end\r\ndata: last\r\n\r\n"
EVENTS = [TASK_ID, PING, CHUNK_1, CHUNK_2, END]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type:text/event-stream;  charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_CHUNKS = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
JSON_BODY = b'{"status":"ok"}'
JSON_HEAD = b"HTTP/1.1 200 Okay\r\ncontent-type: application/json\r\nContent-Length: 15\r\nX-Odd:  a  \r\n\r\n"
