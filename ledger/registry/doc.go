// Package registry is the allocation registry: runtime.db, an SQLite database in
// the Runtime root that says which repositories, Execution Workspaces and
// Workers there are and were.
//
// It exists so that a listing, a page or a filter needs no walk over the
// cleanup ledger. It decides nothing about cleanup: after a crash the ledger
// says what is left over, and the registry is brought to agree with it.
//
// Each record is a JSON document beside the few columns that are searched.
// Writes are immediate transactions in WAL mode with synchronous=FULL, so an
// acknowledged write survives power loss, and several processes may have the
// database open at once. In a Runtime it is the only package that links SQLite.
package registry
