"""One turn of the loop: batches, their padded shapes, programs and graphs over them."""
