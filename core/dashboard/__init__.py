"""Everything that imports Streamlit or Plotly and is not a page."""
