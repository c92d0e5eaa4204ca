// Package external holds what is promised about an operator's own
// materialization command: what it is given, how it is confined, and that a
// tree which is not exactly the pristine one is never used.
package external
