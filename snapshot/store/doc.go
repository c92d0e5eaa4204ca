// Package store keeps snapshot archives in a directory, behind an HTTP server or
// in an S3-compatible object store, each under its digest.
//
// A store is not trusted: it may answer anything, late, or never. What it gives
// is checked by package snapshot; what it does is named here by a diagnostic.
// Credentials come from a file or the environment and go into request headers
// only: never into an address, an argument list or an error.
//
// S3 is spoken by yoi-s3, a program of its own that is started on demand: its
// client library alone would add a third to the time that every yoi takes to start.
package store
