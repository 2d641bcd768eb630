// SPDX-License-Identifier: Apache-2.0 OR MIT
// Node's http as an application uses it: the path decoded and resolved, the host from its header.
const http = require('node:http');
const path = require('node:path').posix;
const fs = require('node:fs');
const tls = require('node:tls');

function what(request) {
	let target = request.url.replace(/^[a-z]+:\/\/[^/?#]*/i, '').replace(/[?#].*/s, '');
	try {
		target = decodeURIComponent(target);
	} catch {}
	target = path.normalize(target);
	if (target.startsWith('/marker')) return '@MARKER@';
	const host = (request.headers.host ?? '').replace(/:\d*$/, '').toLowerCase();
	const refused = target.startsWith('/secret') || host === 'secret.example' || request.headers['x-secret'] === 'yes';
	return refused ? '@REFUSED@' : '@PLAIN@';
}

for (const port of [@RESET@, @UNAVAILABLE@, @OPEN@]) {
	const server = http.createServer((request, response) => {
		request.resume();
		response.end(what(request));
	});
	server.keepAliveTimeout = 30000;
	server.listen({ port, host: '0.0.0.0', backlog: 4096 });
}

const [plain, secret] = ['plain', 'secret'].map((name) => {
	const pem = fs.readFileSync(`@ROOT@/${name}.pem`);
	return { key: pem, cert: pem, maxVersion: 'TLSv1.2' };
});
const context = tls.createSecureContext(secret);
for (const port of [@TLS@, @TLS-OPEN@]) {
	const SNICallback = (name, done) => done(null, name.toLowerCase() === 'secret.example' ? context : undefined);
	const server = tls.createServer({ ...plain, SNICallback }, (socket) => socket.on('error', () => {}));
	server.on('tlsClientError', () => {});
	server.listen({ port, host: '0.0.0.0', backlog: 4096 });
}
