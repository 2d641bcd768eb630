// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Node's own http. Usage: node server.js PORT ROUNDS
// A request costs so many rounds of SHA-256 over 1 kB.
'use strict'
const http = require('http')
const { createHash } = require('crypto')
const [port, rounds] = process.argv.slice(2).map(Number)
const block = Buffer.alloc(1024)
const page = 'x'.repeat(1024)
const server = http.createServer((request, response) => {
  for (let round = 0; round < rounds; round++) createHash('sha256').update(block).digest()
  response.setHeader('Content-Length', page.length)
  response.end(page)
})
server.keepAliveTimeout = 65000
server.listen({ port, host: '0.0.0.0', backlog: 4096 })
