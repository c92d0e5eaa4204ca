// Package registry is the allocation registry, runtime.db (SQLite).
package registry
