"""DynamoDB as moto imitates it, with one thread: it promises nothing for more (getmoto/moto#7166). Prints its port."""

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print(server.port, flush=True)
server.serve_forever()
