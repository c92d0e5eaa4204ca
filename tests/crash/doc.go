// Package crash cuts the power, so to speak, at every step of the main path.
//
// The programs are built with the tag crashtest, which lets the ledger kill
// the whole process group before and behind each of its records. A walk starts
// the same work again and again, cut off one point later each time, until it
// comes to its end; after every cut the next use must find the Runtime root and
// the machine as if nothing had been there, except a commit that a Worker made
// and nobody collected.
//
// A killed process loses nothing that it wrote, unlike a machine that loses
// its power: what the disk does then is the ledger's own tests' business.
package crash
