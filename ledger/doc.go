// Package ledger is the append-only, fsynced, hash-chained cleanup ledger.
package ledger
