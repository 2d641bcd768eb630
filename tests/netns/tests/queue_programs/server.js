// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Node's own http. Usage: node server.js PORT FILE
// It answers each request with its path, and writes the path into the file.
'use strict'
const fs = require('fs')
const [port, name] = process.argv.slice(2)
const file = fs.openSync(name, 'a')
const server = require('http').createServer((request, response) => {
  request.resume().on('end', () => {
    fs.writeSync(file, request.url + '\n')
    response.end(request.url)
  })
})
server.keepAliveTimeout = 65000
server.listen({ port: Number(port), host: '0.0.0.0', backlog: 4096 })
