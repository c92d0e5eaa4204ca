package api

import _ "embed"

//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the document that describes the API (OpenAPI 3.0.3). It is
// written by hand; a test holds it against the handlers and the Go types.
func OpenAPI() []byte { return openAPI }
