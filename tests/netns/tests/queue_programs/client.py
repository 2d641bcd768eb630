# SPDX-License-Identifier: Apache-2.0 OR MIT
# Clients of Python's own http.client, half of them of the high class. Usage: client.py HOST PORT each|persistent THREADS REQUESTS
# Port 443 is TLS. Each request has a path of its own, which must be the answer; every seventh brings a body. Says what went wrong.
import http.client
import ssl
import sys
import threading

host, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
make, more = http.client.HTTPConnection, {}
if port == 443:
    make, more = http.client.HTTPSConnection, {"context": ssl._create_unverified_context()}
threads, requests = int(sys.argv[4]), int(sys.argv[5])
wrong = []


def client(number):
    source = (f"10.77.{1 + number % 2}.{1 + number // 2}", 0)
    connection = None
    for request in range(requests):
        path = f"/python-{mode}-{number}-{request}"
        if connection is None:
            connection = make(host, port, timeout=60, source_address=source, **more)
        headers = {} if mode == "persistent" else {"Connection": "close"}
        body = b"b" * (100 * request % 9000) if request % 7 == 3 else None
        try:
            connection.request("POST" if body else "GET", path, body, headers)
            response = connection.getresponse()
            answer = response.status, response.read().decode()
        except Exception as error:  # whatever it is, the request was lost
            wrong.append(f"{path}: {error!r}")
            connection = None
            continue
        if answer != (200, path):
            wrong.append(f"{path}: {answer}")
        if mode == "each":
            connection.close()
            connection = None


all_clients = [threading.Thread(target=client, args=(number,)) for number in range(threads)]
for one in all_clients:
    one.start()
for one in all_clients:
    one.join()
print("\n".join(wrong[:10]))
sys.exit(1 if wrong else 0)
