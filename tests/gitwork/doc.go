// Package gitwork proves that git works for a Worker as in any clone, and that
// nothing it does reaches the shared cache or tells it where it is on the host:
// for every strategy, on every file system, as root and as an ordinary user.
package gitwork
