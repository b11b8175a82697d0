// Package quantile computes medians and other quantiles of values, with linear interpolation
// between neighbours: type 7 of Hyndman and Fan, as quantile in R and numpy does.
package quantile
