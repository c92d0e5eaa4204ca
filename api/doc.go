// Package api carries runtime.Service over HTTP+JSON on a unix socket: the
// server, the OpenAPI document that describes it, and the Go client, which is
// a runtime.Service again.
//
// It exists so that a Backend without privileges can use a Runtime, and so
// that everything it says is strictly decoded, bounded in size, depth and time,
// and attributed to a peer's uid by the kernel (SO_PEERCRED, unix(7)) before a
// byte of it is parsed.
//
// It does not authenticate people, does not speak TCP or TLS, and does not
// authorize per resource: a peer that is let in may do everything that the
// Runtime may do. Requests that net/http itself cannot parse are answered by
// net/http in plain text; every other refusal is an RFC 9457 problem document
// with the diagnostic's code. A diagnostic's cause never leaves the process.
package api
