"""DynamoDB as moto imitates it, with one thread: it promises nothing for more (getmoto/moto#7166). Prints its port. Counts what it is asked:
/requests tells the counts, and begins anew."""

import io
import json
from collections import Counter

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

counts = Counter()
moto = DomainDispatcherApplication(create_backend_app)


def counted(environ, start_response):
    if environ["PATH_INFO"] == "/requests":
        start_response("200 OK", [("Content-Type", "application/json")])
        told = json.dumps(counts).encode()
        counts.clear()
        return [told]
    target = environ.get("HTTP_X_AMZ_TARGET", "").split(".")[-1]
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    if target == "GetItem" and json.loads(body).get("ConsistentRead"):
        target = "GetItem, consistent"
    counts[target] += 1
    return moto(environ, start_response)


server = make_server("127.0.0.1", 0, counted, threaded=False)
print(server.port, flush=True)
server.serve_forever()
