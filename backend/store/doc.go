// Package store is the Backend's own database: who may do what, what was asked
// for, and who asked. It is one SQLite file that belongs to the Backend alone.
//
// It exists because a Runtime knows Execution Workspaces and not people. What an
// Execution Workspace is and how it fares is asked of its Runtime each time and
// never copied here, so that the two cannot disagree.
//
// Secrets are not stored: of a password there is the argon2id hash, of a token or
// a session the SHA-256 of its 256 random bits, which needs no slow hash.
package store
