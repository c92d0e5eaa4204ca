// Package remote takes trees from one Runtime root to another through snapshot
// stores: a directory, an HTTP server and a real S3 server on loopback; as root,
// as an ordinary user and through the daemons.
package remote
