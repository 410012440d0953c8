"""What is measured: back ends and forms of their weights, several in processes of their own."""
