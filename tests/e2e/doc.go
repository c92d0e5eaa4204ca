// Package e2e drives the main path as a new user would: the built yoi binary,
// as root and as an ordinary user, and what it promises about streams, exit
// codes, signals, terminals and leaving nothing behind.
package e2e
