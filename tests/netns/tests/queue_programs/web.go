// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Go's own net/http, with multipath TCP as it comes. Usage: web ADDRESS FILE
// It answers each request with its path, and writes the path into the file.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	file, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprintln(file, r.URL.Path)
		fmt.Fprint(w, r.URL.Path)
	})
	panic(http.ListenAndServe(os.Args[1], nil))
}
